"""nibble's tiny trained model: tokenizer, tasks, training, export and measurement. Entry point: tools/train_tiny.py."""
