"""Text to tokens and back: `tokenizer`, `chat_template`, and `detokenizer` for streams."""
