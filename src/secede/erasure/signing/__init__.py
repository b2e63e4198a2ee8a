"""Keys, and signatures over documents."""
