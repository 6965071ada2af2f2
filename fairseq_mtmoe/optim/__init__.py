"""The fused Adam, and optimizer states by parameter name. Importing `fused_adam` registers it with fairseq."""
