"""What programs read and people look at, written down."""
