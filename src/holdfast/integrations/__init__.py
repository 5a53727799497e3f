"""Adapters: the same guard inside training loops that somebody else owns. One line each.

    transformers.py   HoldfastCallback for the Hugging Face Trainer
    lightning.py      HoldfastCallback for lightning.pytorch and pytorch_lightning
    accelerate.py     guard(accelerator, model, optimizer)
    ray.py            guard(model, optimizer) and report(guard, metrics) in a Ray Train worker
    deepspeed.py      watch(engine): observes only, DeepSpeed owns its step
    frameworks.py     bringing a framework in, or saying how to install it

Importing this package imports no framework and no torch; importing one of its modules imports what
that module is for.
"""
