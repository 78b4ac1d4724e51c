"""The file in which plans are kept between runs, and the names of what is kept."""
