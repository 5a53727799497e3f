"""What is measured at a step: gradients, parameters, samples, and the record they make."""
