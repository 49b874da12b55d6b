"""The sharing profiles and MIG layouts that an installation brings, as entries of ConfigMaps that people edit."""
