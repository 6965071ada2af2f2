"""System 4, PEMT: importing this package registers it with fairseq."""
