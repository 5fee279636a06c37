"""The learner on DeepSpeed: packing, attention, ZeRO, ranks, weights."""
