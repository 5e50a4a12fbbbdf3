"""What callers may take: admission, classes, rates, fair shares, and requests that are held back."""
