"""Export: graphs, writers of each format, quantized files, and the web page."""
