"""What the machine is: sysfs and procfs read into a frozen Machine."""
