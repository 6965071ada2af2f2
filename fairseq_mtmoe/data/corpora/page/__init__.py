"""What was made of raw corpora, for people: `report.json` as one HTML page, and in Markdown.

The page is one file without scripts, which asks the network for nothing; every line of a corpus that it shows is text
in it, whatever the line holds.
"""

from fairseq_mtmoe.data.corpora.page.figures import findings, shards_of, training_command
from fairseq_mtmoe.data.corpora.page.pages import FEW, markdown_of, page_of
from fairseq_mtmoe.io.pages import visible

__all__ = ["FEW", "findings", "markdown_of", "page_of", "shards_of", "training_command", "visible"]
