"""The commands that train and what is around it: data, shortlists, scores, pictures."""
