"""The post-norm encoder of BERT and RoBERTa with slots in its blocks.

Reads and writes Hugging Face's folders.
"""
