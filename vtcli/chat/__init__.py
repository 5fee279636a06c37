"""One model family a file: messages to tokens and back."""
