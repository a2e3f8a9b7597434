"""The authority policy at the command line: signers, signing with ssh-keygen, showing and changing the policy."""
