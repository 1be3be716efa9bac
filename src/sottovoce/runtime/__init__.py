"""Where agents run: vectorised on one machine or a mesh, or one thread an agent."""
