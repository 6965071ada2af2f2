"""What of a recipe is openly available, from the web into RAW: resumed, verified, complete or absent."""
