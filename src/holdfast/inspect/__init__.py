"""What a checkpoint holds, without the frameworks that wrote it: compared with another, or as other programs' files."""
