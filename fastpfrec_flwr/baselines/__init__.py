"""The models that FastPFRec is held against, on the same splits and through the same metrics."""
