"""The formats in which kubelets serve the resource usage of pods."""
