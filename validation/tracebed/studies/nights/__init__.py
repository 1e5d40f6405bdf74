"""The study of published runs whose nodes are off at night, with the published figures."""
