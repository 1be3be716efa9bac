"""Two CPU devices, so that sharded runs can be compared with vectorised ones."""

import jax

jax.config.update("jax_num_cpu_devices", 2)
