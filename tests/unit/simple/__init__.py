"""Sets of wheels from an index: AMD's layout by the stand-in, and pages as other indexes have them."""
