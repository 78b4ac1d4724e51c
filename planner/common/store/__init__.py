"""The file in which plans are kept between runs, and the keys of its entries."""
