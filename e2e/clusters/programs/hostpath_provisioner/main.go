// Provisions directories of a node as hostPath PersistentVolumes, for tests.
//
// It honours both binding modes, every access mode, allowVolumeExpansion, reclaim policies and clones
// (a dataSource that is a claim of this provisioner). It rejects volumeMode Block, selectors and other
// data sources, and keeps one CSIStorageCapacity for each of its StorageClasses. Nothing limits what a
// pod writes to a volume.
//
// Parameters of a StorageClass:
//
//	provisionError  provisioning fails with this message
//	provisionDelay  provisioning takes this long, such as 5s
//	expandError     expansion fails with this message
//	expandDelay     expansion takes this long
//	capacity        the sum of all volumes of the class; a larger claim is rescheduled
//	roundUpTo       volumes are a multiple of this size, so that they may exceed the request
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v11/controller"
)

const (
	hostnameLabel     = "kubernetes.io/hostname"
	capacityNamespace = "kube-system"
	// Retries of one claim or volume: short, since tests wait for them.
	firstRetry = time.Second
	lastRetry  = 5 * time.Second
	interval   = 500 * time.Millisecond
)

// The capacity of a class without a limit.
var unlimited = resource.MustParse("1Pi")

type provisioner struct {
	name, folder, node string
	client             kubernetes.Interface
	claims             corelisters.PersistentVolumeClaimLister
	volumes            corelisters.PersistentVolumeLister
	classes            storagelisters.StorageClassLister
	capacities         storagelisters.CSIStorageCapacityLister
	events             record.EventRecorder

	mutex sync.Mutex
	// Volumes that may not be in the cache yet.
	reserved map[string]reservation
}

type reservation struct {
	class string
	size  int64
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file")
	p := &provisioner{reserved: map[string]reservation{}}
	flag.StringVar(&p.name, "provisioner", "", "name of the provisioner in StorageClasses")
	flag.StringVar(&p.folder, "folder", "", "folder of all volumes, on the node")
	flag.StringVar(&p.node, "node", "", "node of volumes for which the scheduler selected none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	config.QPS, config.Burst = 200, 400
	p.client = kubernetes.NewForConfigOrDie(config)
	p.run(ctx)
}

func (p *provisioner) run(ctx context.Context) {
	broadcaster := record.NewBroadcaster()
	sink := &typedv1.EventSinkImpl{Interface: p.client.CoreV1().Events(v1.NamespaceAll)}
	broadcaster.StartRecordingToSink(sink)
	p.events = broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: p.name})

	factory := informers.NewSharedInformerFactory(p.client, 0)
	claims := factory.Core().V1().PersistentVolumeClaims()
	volumes := factory.Core().V1().PersistentVolumes()
	classes := factory.Storage().V1().StorageClasses()
	p.claims, p.volumes, p.classes = claims.Lister(), volumes.Lister(), classes.Lister()
	p.capacities = factory.Storage().V1().CSIStorageCapacities().Lister()
	main := controller.NewProvisionController(ctx, p.client, p.name, p,
		controller.ClaimsInformer(claims.Informer()),
		controller.VolumesInformer(volumes.Informer()),
		controller.ClassesInformer(classes.Informer()),
		controller.LeaderElection(false),
		controller.AddFinalizer(true),
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.RateLimiter(
			workqueue.NewItemExponentialFailureRateLimiter(firstRetry, lastRetry)),
	)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	go wait.UntilWithContext(ctx, p.expandAll, interval)
	go wait.UntilWithContext(ctx, p.publishAll, interval)
	main.Run(ctx)
}

// Provision creates the directory of a volume.
func (p *provisioner) Provision(
	ctx context.Context, options controller.ProvisionOptions,
) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	parameters, err := parse(options.StorageClass)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	select {
	case <-time.After(parameters.provisionDelay):
	case <-ctx.Done():
		return nil, controller.ProvisioningNoChange, ctx.Err()
	}
	if parameters.provisionError != "" {
		return nil, controller.ProvisioningFinished, fmt.Errorf("%s", parameters.provisionError)
	}
	if options.PVC.Spec.Selector != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("a selector is not supported")
	}
	source, err := p.source(options.PVC)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	size := parameters.rounded(options.PVC.Spec.Resources.Requests[v1.ResourceStorage])
	if err := p.reserve(options, parameters, size); err != nil {
		return nil, controller.ProvisioningReschedule, err
	}
	path := filepath.Join(p.folder, options.PVName)
	if err := create(path, source); err != nil {
		p.release(options.PVName)
		return nil, controller.ProvisioningFinished, err
	}
	return p.volume(options, path, size), controller.ProvisioningFinished, nil
}

// Delete removes the directory of a volume.
func (p *provisioner) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	path := filepath.Join(p.folder, volume.Name)
	if volume.Spec.HostPath == nil || volume.Spec.HostPath.Path != path {
		return fmt.Errorf("the volume is not at %s", path)
	}
	p.release(volume.Name)
	return os.RemoveAll(path)
}

func (p *provisioner) volume(
	options controller.ProvisionOptions, path string, size resource.Quantity,
) *v1.PersistentVolume {
	node := p.node
	if selected := options.SelectedNode; selected != nil {
		node = selected.Labels[hostnameLabel]
	}
	onNode := v1.NodeSelectorRequirement{
		Key: hostnameLabel, Operator: v1.NodeSelectorOpIn, Values: []string{node},
	}
	terms := []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{onNode}}}
	kind := v1.HostPathDirectoryOrCreate
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *options.StorageClass.ReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			MountOptions:                  options.StorageClass.MountOptions,
			VolumeMode:                    options.PVC.Spec.VolumeMode,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: size},
			NodeAffinity: &v1.VolumeNodeAffinity{
				Required: &v1.NodeSelector{NodeSelectorTerms: terms},
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind},
			},
		},
	}
}

// source returns the directory to copy, or nothing for an empty volume.
func (p *provisioner) source(claim *v1.PersistentVolumeClaim) (string, error) {
	from := claim.Spec.DataSource
	if from == nil {
		if claim.Spec.DataSourceRef != nil {
			return "", fmt.Errorf("data source %s is not supported", claim.Spec.DataSourceRef.Kind)
		}
		return "", nil
	}
	if from.Kind != "PersistentVolumeClaim" {
		return "", fmt.Errorf("data source %s is not supported", from.Kind)
	}
	original, err := p.claims.PersistentVolumeClaims(claim.Namespace).Get(from.Name)
	if err != nil {
		return "", err
	}
	volume, err := p.volumes.Get(original.Spec.VolumeName)
	if err != nil || volume.Spec.HostPath == nil || !p.provisioned(volume) {
		return "", fmt.Errorf("data source %s has no volume of %s", from.Name, p.name)
	}
	return volume.Spec.HostPath.Path, nil
}

// create makes a directory that every user may write to, with a copy of source.
func create(path, source string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	if source != "" {
		output, err := exec.Command("cp", "-a", source+"/.", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", output, err)
		}
	}
	return os.Chmod(path, 0o777)
}

func (p *provisioner) provisioned(volume *v1.PersistentVolume) bool {
	return volume.Annotations["pv.kubernetes.io/provisioned-by"] == p.name
}
