"""A cache of finished stages that machines share over a network: stores of objects, and the client that uses one."""
