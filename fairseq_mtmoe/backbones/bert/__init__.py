"""The post-norm encoder of BERT and RoBERTa with slots in its blocks; reads and writes Hugging Face's folders."""
