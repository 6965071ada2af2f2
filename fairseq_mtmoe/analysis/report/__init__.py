"""The page of `mtmoe report`: one HTML file that needs no network."""
