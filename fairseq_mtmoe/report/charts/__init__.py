"""Charts from rows, in Altair: the pictures and the charts of the page of `mtmoe report`."""
