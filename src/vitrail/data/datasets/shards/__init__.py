"""Images in tar files, as webdataset writes them."""
