"""Facts from model files: configurations, tensor headers, GGUF metadata, tokenizers. Never weights."""
