"""The page of `mtmoe report`: what runs did, as one HTML file that opens from the disk without a network."""
