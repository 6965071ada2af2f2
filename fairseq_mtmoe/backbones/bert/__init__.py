"""BERT's encoder (post-norm, exactly) and RoBERTa's, whose blocks have slots; from Hugging Face's folders and back.

Pure torch: `encoder.py` is the model, a stack of `blocks.py` with the `attention.py` (on a CPU `packed_attention.py`)
and `dropout.py` that they need, over the `rows.py` of a batch; `config.py` has its sizes. `key_map.py` says what
Hugging Face calls its parameters, `hugging_face.py` reads and writes folders, and `encoder_file.py` the one file that
`mtmoe import-hf` makes of them.
"""
