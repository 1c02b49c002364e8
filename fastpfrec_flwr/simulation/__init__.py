"""The same ServerApp, Strategy and ClientApp without Ray, in one process: for sweeps and tests."""
