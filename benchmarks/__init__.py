"""Figures, each with its floor or peer measured in the same run. ``make bench`` runs them all."""
