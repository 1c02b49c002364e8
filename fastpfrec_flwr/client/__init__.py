"""Floor 1, the client: local training, what stays on the device, local evaluation, the ClientApp."""
