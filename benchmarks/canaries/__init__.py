"""What canaries show where nobody cheats: before an erasure, retrained, and by `secede erase`."""
