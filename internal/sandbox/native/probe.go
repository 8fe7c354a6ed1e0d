package native

func runProbe() {}
