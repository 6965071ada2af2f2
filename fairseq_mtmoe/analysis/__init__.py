"""What a run did, in numbers and pictures: run log, scores, figures. Imports no fairseq; only `charts` draws."""
