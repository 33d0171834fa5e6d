"""What the papers' own settings share: hub models, image sets with their prompts, CLIP, layouts of files."""
