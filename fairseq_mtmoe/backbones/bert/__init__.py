"""BERT's encoder (post-norm, exactly) and RoBERTa's, whose blocks have slots; from Hugging Face's folders and back."""
