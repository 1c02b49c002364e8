"""What leaves a client: clipped, then noised, on a grid. Knows neither Flower nor data."""
