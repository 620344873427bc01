"""Web page of the server: the static files of this folder."""
