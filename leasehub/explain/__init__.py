"""Why am I waiting, why was I refused, who ended my lease: from the rows and the journal, through the caller's eyes."""
