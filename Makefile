# Each target only calls scripts/start; ARGS is passed on, as in
#     make serve ARGS="--port 8080"

.DEFAULT_GOAL := help
.PHONY: help serve test lint kernels

help:
	@echo "make serve    install what is missing, fetch the default model, start the server"
	@echo "make test     the same for the tests, and run them"
	@echo "make lint     ruff, mypy and the import contracts"
	@echo "make kernels  build the C++ kernels again"
	@echo "Without make: sh scripts/start serve|test|lint|kernels [ARGS]"

serve test lint kernels:
	@sh scripts/start $@ $(ARGS)
