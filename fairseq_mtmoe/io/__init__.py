"""Files: complete or absent, read only for what they are; tables for people."""
