"""The timeline as a picture: lanes over time, in the terminal, as SVG and as one HTML page."""
