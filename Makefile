# Each target only calls scripts/start; ARGS is passed on, as in
#     make serve ARGS="--port 8080"

.DEFAULT_GOAL := help
.PHONY: help serve test compat lint kernels

help:
	@echo "make serve    install what is missing, fetch the default model, start the server"
	@echo "make test     the same for the tests, and run them"
	@echo "make compat   install other people's clients beside it, and try them on a server"
	@echo "make lint     ruff, mypy and the import contracts"
	@echo "make kernels  build the C++ kernels again"
	@echo "Without make: sh scripts/start serve|test|compat|lint|kernels [ARGS]"

serve test compat lint kernels:
	@sh scripts/start $@ $(ARGS)
