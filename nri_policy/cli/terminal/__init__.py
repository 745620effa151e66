"""What the terminal needs: tables that fit, lines that move, keys."""
