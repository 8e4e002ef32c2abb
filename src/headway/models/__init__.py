"""Models: where they come from, what they are, and their weights.

sources, hub             from what a user calls a model to a path
weights                  `open_model`, `ModelFile`: a model on disk, whatever its format
gguf, safetensors        the two file formats: bounded readers that give tensors by name
directory, json_file     what a Hugging Face directory says beside its weights
families                 the kinds of decoder that run, and the names of their tensors
gguf_spec, config_spec   from metadata to a `DecoderSpec`; `sizes`, `rope`, `fields` help both
loading                  from tensors to a decoder's weights, layer by layer
spec                     what all of it comes to
"""
